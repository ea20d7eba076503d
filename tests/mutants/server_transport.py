"""TLS, and that an agent proves who it is."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_TLS: Final = "tests/contract/test_tls.py::test_"
_IDENTITY: Final = "tests/contract/test_agent_identity.py::test_"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("transport", protection, file, old, new, tests)


MUTANTS: Final = (
    of(
        "callers need a certificate of the client CA",
        "shared/http/tls.py",
        "                context.verify_mode = ssl.CERT_REQUIRED\n",
        "                context.verify_mode = ssl.CERT_NONE\n",
        f"{_TLS}with_a_client_ca_only_callers_with_its_certificate_are_answered",
    ),
    of(
        "an agent's certificate is checked",
        "shared/http/tls.py",
        "            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\n",
        "            context = ssl._create_unverified_context()\n",
        f"{_TLS}without_the_right_certificates_it_is_silence"
        "[stranger-True-its certificate is not trusted]",
    ),
    of(
        "handshakes that do not end are closed for others",
        "shared/http/listener.py",
        "        table.add(self, self._peer)\n",
        "        pass\n",
        f"{_TLS}connections_without_a_handshake_are_closed_for_others[nothing]",
    ),
    of(
        "files that cannot be read again change nothing",
        "shared/http/tls.py",
        '            log.warning("tls.not_reloaded", why=str(problem))\n',
        "            raise\n",
        f"{_TLS}new_files_are_used_for_new_connections",
    ),
    of(
        "answers of an agent are proved",
        "server/agents/agent_client.py",
        "                if self._identity is not None:\n",
        "                if False:\n",
        f"{_IDENTITY}without_the_right_proof_it_is_silence",
        f"{_IDENTITY}every_answer_is_proved_not_only_the_first",
    ),
    of(
        "a proof is of one nonce and status",
        "shared/http/authentication.py",
        "    if not hmac.compare_digest(",
        "    if False and not hmac.compare_digest(",
        f"{_IDENTITY}a_proof_is_of_one_answer",
    ),
    of(
        "who has not proved who it is gets no token",
        "server/agents/ferryman_agent.py",
        "        if self._identity is not None and not self.reachable:\n",
        "        if False:\n",
        f"{_IDENTITY}who_has_taken_its_address_gets_neither_token_nor_bundle",
    ),
)
