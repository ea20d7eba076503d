"""Making jobs of bundles."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Unpack

from ferryman.answers import Accepted
from ferryman.bundle import Files
from ferryman.calls import Calls
from ferryman.fields import JobOptions, upload_fields
from ferryman.form import ProgressCallback
from ferryman.ordered import in_order
from ferryman.upload import submit


class SubmitCalls(Calls):
    """Part of :class:`ferryman.Client`."""

    async def submit(
        self,
        files: Files,
        *,
        service: str,
        user: str | None = None,
        name: str | None = None,
        tags: str | Iterable[str] = (),
        idempotency_key: str | None = None,
        progress: ProgressCallback | None = None,
        **options: Unpack[JobOptions],
    ) -> Accepted:
        """Send a bundle. When this returns, the server will not lose it.

        Args:
            files: a folder (what is in it, relative to it), one archive (.zip, .tar, .tar.gz,
                .tgz), files (by base name), or a mapping of names to paths, bytes or open files.
            service: which kind of work.
            user: whose; default: the client's.
            name: for people, to find it again.
            tags: to find it again; no commas. A string is one tag.
            idempotency_key: default: a random one, so that a repeat after a lost answer is
                harmless.
            progress: called with bytes sent and bytes in all.
            options: see :class:`~ferryman.fields.JobOptions`: limits and timeouts, which are at
                most the service's, retries, an array, dependencies.

        Raises:
            BadBundle: nothing has been sent.
            FileChanged: a file changed meanwhile; there is no job.
            Refused, Unreachable, NotUnderstood
            BadArgument: no user, a bad option, a tag with a comma.
        """
        fields = upload_fields(service, self._user_of(user), name, tags, options)
        return await submit(self._transport, files, fields, idempotency_key, progress)

    def submit_many(
        self,
        bundles: Iterable[Files],
        *,
        service: str,
        user: str | None = None,
        tags: str | Iterable[str] = (),
        idempotency_key: str | None = None,
        at_once: int = 4,
        **options: Unpack[JobOptions],
    ) -> AsyncGenerator[Accepted, None]:
        """Send a bundle after the other, some at the same time.

        Args:
            bundles: each as :meth:`submit` takes it; taken as they are needed.
            idempotency_key: beginning of the keys of all, so that the whole can be repeated.
            at_once: uploads at the same time.
            tags, options: as :meth:`submit`

        Returns:
            What became of each, in their order.

        Raises:
            As :meth:`submit`, for the first bundle that fails; those before it are jobs.
        """
        words = [tags] if isinstance(tags, str) else list(tags)
        each = (
            partial(
                self.submit,
                bundle,
                service=service,
                user=user,
                tags=words,
                idempotency_key=f"{idempotency_key}.{number}" if idempotency_key else None,
                **options,
            )
            for number, bundle in enumerate(bundles)
        )
        return in_order(each, at_once)
