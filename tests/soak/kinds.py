"""What users of the soak submit, and what must come of it."""

import hashlib
import io
import zipfile
from dataclasses import dataclass, field
from random import Random

Files = dict[str, bytes]
INDICES = 4
_SAY = "echo {token} > out.txt"
_SPLIT = """
for part in a b c; do
    mkdir -p children/$part
    echo "echo {token} $part > out.txt" > children/$part/run.sh
done
"""
_SCRIPTS = {
    "quick": (9, _SAY),
    "slow": (6, "sleep {seconds}; " + _SAY),
    "fails": (3, _SAY + "; echo sorry >&2; exit 4"),
    "forks": (3, "(sleep 300; echo late >> out.txt) & setsid sleep 300 & " + _SAY),
    "again": (2, _SAY + '; [ "$FERRYMAN_ATTEMPT" -gt 2 ] || exit 3'),
    "later": (2, _SAY + '; [ "$FERRYMAN_ATTEMPT" -gt 1 ] || exit 75'),
    "hangs": (2, _SAY + "; (sleep 900 &) ; sleep 900"),
    "timeout": (1, _SAY + "; sleep 900"),
    "values": (3, f"echo ::progress value=1,total=2::half; echo ::output name=t::1; {_SAY}"),
    "data": (4, f"sha256sum < data.bin > digest.txt; tac data.bin > backwards.bin; {_SAY}"),
    "array": (1, "sleep 0.3; echo {token} $FERRYMAN_ARRAY_INDEX > out.txt"),
    "fan-out": (1, _SPLIT),
    "noisy": (1, "for n in $(seq 3000); do echo line $n {token}; done; " + _SAY),
}
"""Weight and script."""
_FIELDS = {
    "again": {"retries": "5", "retry_delays": "200ms", "retry_on": "exit:3"},
    "timeout": {"timeout": "2s"},
    "array": {"array": f"0-{INDICES - 1}", "max_parallel": "2"},
}


@dataclass
class Bundle:
    """One upload, with the digest of its data.bin, if it has one."""

    kind: str
    token: str
    files: Files
    fields: dict[str, str] = field(default_factory=dict)
    data: str = ""

    def complaint(self, content: bytes) -> str:
        """What is wrong with the result; empty if nothing is."""
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if archive.testzip() is not None:
                return "the ZIP is damaged"
            expected = {"out.txt": f"{self.token}\n"}
            if self.kind == "array":
                expected = {f"{at}/out.txt": f"{self.token} {at}\n" for at in range(INDICES)}
            elif self.kind == "fan-out":
                expected = {"out.txt": "".join(f"{self.token} {part}\n" for part in "abc")}
            there = expected.keys() & {*archive.namelist()}
            found = {name: archive.read(name).decode() for name in there}
            if found != expected:
                return f"it has {found}, not {expected}; it holds {archive.namelist()}"
            if self.data:
                told = archive.read("digest.txt").decode().split()[0]
                kept = hashlib.sha256(archive.read("data.bin")).hexdigest()
                if (told, kept) != (self.data, self.data):
                    return f"data.bin is {kept}, the job read {told}, uploaded was {self.data}"
        return ""


def draw(random: Random) -> Bundle:
    weights = [weight for weight, _ in _SCRIPTS.values()]
    return made(random.choices(list(_SCRIPTS), weights)[0], random)


def made(kind: str, random: Random) -> Bundle:
    token = f"{random.getrandbits(96):024x}"
    script = _SCRIPTS[kind][1].replace("{token}", token)
    script = script.replace("{seconds}", f"{random.uniform(0.2, 6):.2f}")
    bundle = Bundle(kind, token, {"run.sh": f"{script}\n".encode()}, {**_FIELDS.get(kind, {})})
    if kind == "data":
        content = random.randbytes(random.choice((10, 5_000, 100_000, 1_500_000)))
        bundle.files["data.bin"] = content
        bundle.data = hashlib.sha256(content).hexdigest()
    if kind == "fan-out":
        bundle.files["gather.sh"] = b"cat children/*/out.txt | sort > out.txt\n"
    return bundle


def natural(kind: str) -> tuple[str, str | None]:
    """State and reason, where nobody interferes."""
    if kind in ("timeout", "hangs"):
        return "Failed", "timeout"
    return ("Failed", "exit_code") if kind == "fails" else ("Completed", None)
