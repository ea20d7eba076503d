"""The manifests: schemas of Kubernetes, what refers to what, and the settings in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from ruamel.yaml import YAML

import client_agent.settings.agent
from server.settings import load
from tests.support.dev_program import ROOT

FOLDER = ROOT / "deploy/kubernetes"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
LIST = YAML(typ="safe").load(FOLDER / "kustomization.yaml")
OBJECTS = [one for path in FILES for one in YAML(typ="safe").load_all(path)]
OLDEST = "1.31"  # hostUsers and procMount of the agent want 1.33 without feature gates


def one(kind: str, name: str) -> Any:
    (found,) = (o for o in OBJECTS if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return found


def pod(program: str) -> Any:
    return one("StatefulSet", f"ferryman-{program}")["spec"]["template"]["spec"]


VERSIONS = (OLDEST, "1.33", kubernetes_validate.latest_version())


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_follows_the_schema_of_kubernetes(version):
    for found in OBJECTS:
        kubernetes_validate.validate(found, version, strict=True)


def test_the_check_can_fail():
    service = {**one("Service", "ferryman-server"), "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, OLDEST, strict=True)


def test_the_list_has_every_file_that_needs_nothing_else():
    assert {*LIST["resources"], "ingress.yaml", "secret.yaml"} == {path.name for path in FILES}


def test_everything_is_in_the_namespace():
    others = [o for o in OBJECTS if o["kind"] != "Namespace"]
    assert {o["metadata"]["namespace"] for o in others} == {LIST["namespace"]}


@pytest.mark.parametrize("program", ["server", "agent"])
def test_whatever_a_pod_mounts_is_there(program):
    spec = pod(program)
    claims = one("StatefulSet", f"ferryman-{program}")["spec"]["volumeClaimTemplates"]
    volumes = {volume["name"] for volume in (*spec["volumes"], *(c["metadata"] for c in claims))}
    (container,) = spec["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    for volume in spec["volumes"]:
        if "configMap" in volume:
            assert one("ConfigMap", volume["configMap"]["name"])
        if "secret" in volume:
            keys = one("Secret", volume["secret"]["secretName"])["stringData"]
            assert {item["key"] for item in volume["secret"].get("items", ())} <= set(keys)
    labels = one("StatefulSet", f"ferryman-{program}")["spec"]["template"]["metadata"]["labels"]
    service = one("Service", f"ferryman-{program}")
    assert service["spec"]["selector"].items() <= labels.items()
    assert (
        one("NetworkPolicy", f"ferryman-{program}")["spec"]["podSelector"]["matchLabels"]
        == (service["spec"]["selector"])
    )


def test_the_servers_pod_is_what_the_standard_restricted_admits():
    spec, (container,) = pod("server"), pod("server")["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"configMap", "secret", "emptyDir"}


def _settings(program: str, folder: Path) -> Path:
    """The file of its ConfigMap, as the pod finds it; the secrets are elsewhere here."""
    text = one("ConfigMap", f"ferryman-{program}")["data"][f"{program}.toml"]
    for name in one("Secret", "ferryman-tokens")["stringData"]:
        (folder / name).write_text("a-token-of-twenty-characters\n")
    file = folder / f"{program}.toml"
    file.write_text(text.replace("/etc/ferryman-tokens", str(folder)))
    mounts = pod(program)["containers"][0]["volumeMounts"]
    assert {"/data", "/etc/ferryman", "/etc/ferryman-tokens"} <= {m["mountPath"] for m in mounts}
    return file


def test_the_settings_are_those_that_the_programs_read(tmp_path):
    server = load.read(_settings("server", tmp_path), {}, {})
    agent = client_agent.settings.agent.load(_settings("agent", tmp_path), {}, {})
    assert (str(server.server.data_dir), str(agent.data_dir)) == ("/data", "/data")
    assert server.server.port == pod("server")["containers"][0]["ports"][0]["containerPort"]
    assert agent.port == pod("agent")["containers"][0]["ports"][0]["containerPort"]
    (entry,) = server.agents.values()
    assert entry.url == f"http://ferryman-agent:{agent.port}"
    (rule,) = one("Ingress", "ferryman")["spec"]["rules"]
    assert server.server.allowed_hosts == (rule["host"],)


def test_the_token_of_the_template_starts_no_server(tmp_path):
    file = _settings("server", tmp_path)
    secrets = one("Secret", "ferryman-tokens")["stringData"]
    (tmp_path / "server-tokens").write_text(secrets["server-tokens"])
    with pytest.raises(Exception, match="16"):
        load.read(file, {}, {})
