"""What users of the soak submit, and what must come of it."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass, field
from random import Random

Files = dict[str, bytes]
INDICES = 4
_SPLIT = """
for part in a b c; do
    mkdir -p children/$part
    echo "echo {token} $part > out.txt" > children/$part/run.sh
done
"""
_SCRIPTS = {
    "quick": "echo {token} > out.txt",
    "slow": "sleep {seconds}; echo {token} > out.txt",
    "fails": "echo {token} > out.txt; echo sorry >&2; exit 3",
    "forks": "(sleep 300; echo late >> out.txt) & setsid sleep 300 & echo {token} > out.txt",
    "again": 'echo {token} > out.txt; [ "$FERRYMAN_ATTEMPT" -gt 2 ] || exit 3',
    "later": 'echo {token} > out.txt; [ "$FERRYMAN_ATTEMPT" -gt 1 ] || exit 75',
    "hangs": "echo {token} > out.txt; (sleep 900 &) ; sleep 900",
    "timeout": "echo {token} > out.txt; sleep 900",
    "values": "echo ::progress value=1,total=2::half; echo ::output name=token::{token}; "
    "echo {token} > out.txt",
    "data": "sha256sum < data.bin > digest.txt; "
    "tac data.bin > backwards.bin; echo {token} > out.txt",
    "array": "sleep 0.{index}; echo {token} $FERRYMAN_ARRAY_INDEX > out.txt",
    "fan-out": _SPLIT,
    "noisy": "for n in $(seq 3000); do echo line $n {token}; done; echo {token} > out.txt",
}
KINDS = tuple(_SCRIPTS)
WEIGHTS = (9, 6, 3, 3, 2, 2, 2, 1, 3, 4, 1, 1, 1)
MORE: dict[str, dict[str, str]] = {
    "again": {"retries": "5", "retry_delays": "200ms", "retry_on": "exit:3"},
    "timeout": {"timeout": "2s"},
    "array": {"array": f"0-{INDICES - 1}", "max_parallel": "2"},
}


@dataclass
class Bundle:
    """One upload.

    Attributes:
        data: digest of its data.bin; empty if it has none.
    """

    kind: str
    token: str
    files: Files
    fields: dict[str, str] = field(default_factory=dict)
    data: str = ""


def draw(random: Random) -> Bundle:
    kind = random.choices(KINDS, WEIGHTS)[0]
    token = f"{random.getrandbits(96):024x}"
    values = {"token": token, "seconds": f"{random.uniform(0.2, 6):.2f}", "index": "3"}
    script = _SCRIPTS[kind]
    for name, value in values.items():
        script = script.replace(f"{{{name}}}", value)
    files = {"run.sh": f"{script}\n".encode()}
    bundle = Bundle(kind, token, files, dict(MORE.get(kind, {})))
    if kind == "data":
        content = random.randbytes(random.choice((10, 5_000, 100_000, 1_500_000)))
        files["data.bin"] = content
        bundle.data = hashlib.sha256(content).hexdigest()
    if kind == "fan-out":
        files["gather.sh"] = b"cat children/*/out.txt | sort > out.txt\n"
    return bundle


def natural(kind: str) -> tuple[str, str | None]:
    """State and reason, where nobody interferes."""
    if kind == "fails":
        return "Failed", "exit_code"
    if kind in ("timeout", "hangs"):
        return "Failed", "timeout"
    return "Completed", None


def complaint(kind: str, token: str, data: str, content: bytes) -> str:
    """What is wrong with the result; empty if nothing is."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if archive.testzip() is not None:
            return "the ZIP is damaged"
        if kind == "array":
            names = [f"{index}/out.txt" for index in range(INDICES)]
            expected = [f"{token} {index}\n" for index in range(INDICES)]
        else:
            names = ["out.txt"]
            lines = [f"{token} {part}\n" for part in "abc"] if kind == "fan-out" else []
            expected = ["".join(lines) or f"{token}\n"]
        found = [archive.read(name).decode() for name in names if name in archive.namelist()]
        if found != expected:
            return f"out.txt has {found}, not {expected}; it holds {archive.namelist()}"
        if data:
            told = archive.read("digest.txt").decode().split()[0]
            kept = hashlib.sha256(archive.read("data.bin")).hexdigest()
            if (told, kept) != (data, data):
                return f"data.bin is {kept}, the job read {told}, uploaded was {data}"
    return ""
