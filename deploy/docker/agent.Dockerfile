# syntax=docker/dockerfile:1
# The agent, with the programs that its sandbox needs. Build it from the root of the repository:
#   docker build -f deploy/docker/agent.Dockerfile -t ferryman-agent .
# What the container must be allowed at run time, and why: docs/install.md.
# To pin it to one build: --build-arg PYTHON=3.13-slim-bookworm@sha256:... of `docker buildx imagetools
# inspect python:3.13-slim-bookworm`.
ARG PYTHON=3.13-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /source
COPY requirements/run.txt requirements/build.txt requirements/
RUN python -m venv /opt/ferryman \
    && /opt/ferryman/bin/pip install --require-hashes -r requirements/run.txt \
    && python -m venv /build \
    && /build/bin/pip install --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY ferryman ferryman
COPY server server
COPY client_agent client_agent
COPY shared shared
RUN /build/bin/python -m hatchling build -t wheel -d /wheels \
    && /opt/ferryman/bin/pip install --no-deps /wheels/*.whl

FROM python:${PYTHON}
ARG VERSION=unknown REVISION=unknown
LABEL org.opencontainers.image.title="Ferryman agent" \
    org.opencontainers.image.description="runs bundles in a sandbox" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
# bubblewrap: the sandbox. util-linux: unshare and setpriv, to start jobs unprivileged.
# e2fsprogs: mkfs.ext4, for disk limits that hold when the agent is root. Jobs see this /usr: what
# their run.sh calls belongs here, or into a tree that the agent mounts for them (read_only).
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap util-linux e2fsprogs \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 5001 ferryman \
    && useradd --uid 5001 --gid 5001 --no-create-home --home-dir /data ferryman \
    && install --directory --mode=0711 --owner=5001 --group=5001 /data
COPY --from=build /opt/ferryman /opt/ferryman
ENV PATH=/opt/ferryman/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    FERRYMAN_AGENT__DATA_DIR=/data
# As this user, limits of memory, processes and disk are soft; as root (compose.hard-limits.yaml)
# they are hard. Jobs never run as root in either case.
USER 5001:5001
WORKDIR /data
VOLUME /data
EXPOSE 9000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('PORT', '9000') + '/livez', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["ferryman", "agent"]
CMD ["--host", "0.0.0.0"]
