"""A research group's server with jobs in every state, of three people."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ferryman import SyncClient
from tests.kit.dev_program import EXAMPLES, DevProgram, started

OPERATOR_TOKEN: Final = "the-token-of-the-operator"
CONFIG: Final = """\
[server]
webhook_allow = ["127.0.0.1"]
stored_per_user = "2GiB"
upload_per_user_per_day = "1GiB"

[services.example]
runs_per_user = 4
max_runs = 8
retries = 1
retry_delays = ["1s"]
retry_on = ["exit:7"]

[services.docking]
runs_per_user = 1
max_runs = 3
timeout = "30m"
limits = { cpus = 2, memory = "1GiB", pids = 128, disk = "512MiB" }

[services.folding]
dead_letter = true
timeout = "5m"

[users.protein-lab]
members = ["ana", "ben"]

[agent]
name = "node-1"
slots = 3
labels = { room = "B-114", gpu = "none" }
"""
NAMES: Final = ("ana", "ben", "chen")
ENDING: Final = 40
"""Children of the array that end; the others run on."""
RUNNING: Final = r"""
echo "Docking 2oob_A against 2oob_B, seed $RANDOM"
printf '\e[1mStage 1\e[0m rigid body: \e[32m1000 of 1000 poses\e[0m\n'
echo "warning: 3 residues have no side chain" >&2
printf '\e[1mStage 2\e[0m refinement\n'
for step in $(seq 1 45); do
  printf 'pose %3d  score \e[36m-%d.%02d\e[0m\n' "$step" $((60 + step % 37)) $((step * 7 % 100))
done
mkdir -p poses
printf 'pose,score,buried_area\n1,-97.25,1423\n2,-91.07,1388\n' > poses/scores.csv
echo "::progress value=45,total=100::refining pose 45 of 100"
echo "::output name=best_score::-97.25"
sleep 900
"""
SWEEP: Final = """
echo "temperature $((280 + FERRYMAN_ARRAY_INDEX))"
test "$FERRYMAN_ARRAY_INDEX" -lt 40 || sleep 900
test $((FERRYMAN_ARRAY_INDEX % 9)) != 5 || { echo "did not converge" >&2; exit 2; }
"""
TWICE: Final = """
if [ "$FERRYMAN_ATTEMPT" = 1 ]; then echo "the licence server is away" >&2; exit 7; fi
echo "second try worked" > report.txt
"""


@dataclass
class ResearchGroup:
    """Attributes:
    jobs: what each is for in the pictures -> its number.
    """

    system: DevProgram
    tokens: dict[str, str]
    jobs: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> dict[str, int | str]:
        """What stands in addresses: the jobs, the token of ana."""
        token = self.tokens["ana"].split("_")[1]
        return {**self.jobs, "token": token}


@contextmanager
def research_group(folder: Path) -> Iterator[ResearchGroup]:
    """Start server and agent, and fill them."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "ferryman.toml"
    config.write_text(CONFIG)
    given: Any = dict.fromkeys(("FERRYMAN_TOKEN", "FERRYMAN_SERVER__TOKENS"), OPERATOR_TOKEN)
    with (
        started(folder, "--config", str(config), **given) as system,
        SyncClient(system.url, token=OPERATOR_TOKEN) as operator,
    ):
        tokens = {name: operator.create_token(name, "user", user=name).token for name in NAMES}
        portal = operator.create_token("haddock-portal", "portal", users=["guest-*"])
        tokens |= {"operator": OPERATOR_TOKEN, "portal": portal.token}
        group = ResearchGroup(system, tokens)
        _fill(group)
        yield group


def _fill(group: ResearchGroup) -> None:
    url, jobs = group.system.url, group.jobs
    with ExitStack() as stack:
        people = (SyncClient(url, token=group.tokens[name]) for name in NAMES)
        ana, ben, chen = (stack.enter_context(one) for one in people)

        def run(client: SyncClient, files: Any, **options: Any) -> int:
            return client.submit(files, **{"service": "example"} | options).id

        def ended(client: SyncClient, files: Any, **options: Any) -> int:
            return client.wait(run(client, files, **options)).id

        tags = ["2oob", "paper-3"]
        jobs["contacts"] = ended(ana, EXAMPLES / "contacts", name="helix contacts", tags=tags)
        picture = {"name": "mandelbrot, valley", "tags": ["outreach"]}
        jobs["picture"] = ended(ben, EXAMPLES / "mandelbrot", **picture)
        hook = "http://127.0.0.1:9/hooks/assays"  # nobody is there
        table = {"name": "assay statistics", "callback_url": hook}
        jobs["table"] = ended(ana, EXAMPLES / "csv-stats", **table)
        wrong = EXAMPLES / "fails-instructively"
        jobs["failed"] = ended(ben, wrong, name="simulation, wrong parameters")
        jobs["retried"] = ended(ana, {"run.sh": TWICE.encode()}, name="needs a licence")
        endless = {"name": "endless loop", "timeout": "1s", "retries": 0}
        jobs["timeout"] = ended(chen, {"run.sh": b"sleep 60\n"}, **endless)
        dead = {"run.sh": b"echo 'no template for chain C' >&2\nexit 4\n"}
        jobs["dead"] = ended(chen, dead, name="fold chain C", service="folding")
        jobs["cancelled"] = run(chen, {"run.sh": b"sleep 900\n"}, name="wrong input, stopped")
        chen.cancel(jobs["cancelled"])
        sweep = {"name": "temperature sweep", "tags": ["sweep", "paper-3"], "array": "0-47"}
        script = {"run.sh": SWEEP.encode()}
        jobs["array"] = run(ben, script, **sweep, max_parallel=2, retries=0)
        docking = {"tags": ["2oob", "docking"], "service": "docking"}
        poses = {"run.sh": RUNNING.encode(), "2oob_A.pdb": EXAMPLES / "contacts" / "helices.pdb"}
        jobs["running"] = run(ana, poses, name="2oob, all poses", **docking)
        jobs["queued"] = run(ana, {"run.sh": b"echo later\n"}, name="2oob, second seed", **docking)
        compare = {"run.sh": b"cat inputs/*/scores.csv\n"}
        jobs["after"] = run(ana, compare, name="compare the poses", after=[jobs["running"]])
        daily = EXAMPLES / "csv-stats"
        ana.add_schedule(daily, service="example", cron="0 6 * * 1-5", name="assay, daily")
        jobs["tonight"] = run(chen, {"run.sh": b"true\n"}, name="nightly fit", not_before="in 9h")
        # Until the long jobs run, and what the array's slots allow has ended.
        next(one for one in ana.events(jobs["running"]) if one.event == "job.progress")
        for child in ben.jobs(parent=jobs["array"]):
            if (child.array_index or 0) < ENDING:
                ben.wait(child.id)
