# syntax=docker/dockerfile:1
# The server. Build it from the root of the repository:
#   docker build -f deploy/docker/server.Dockerfile -t ferryman-server .
# To pin it to one build: --build-arg PYTHON=3.13-slim-bookworm@sha256:... of `docker buildx imagetools
# inspect python:3.13-slim-bookworm`.
ARG PYTHON=3.13-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /source
# The locked dependencies first: this layer changes only when they do.
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
# `hatchling build` runs without a package index, so nothing that is not locked gets in.
RUN /build/bin/python -m hatchling build -t wheel -d /wheels \
    && /opt/ferryman/bin/pip install --no-deps /wheels/*.whl

FROM python:${PYTHON}
ARG VERSION=unknown REVISION=unknown
LABEL org.opencontainers.image.title="Ferryman server" \
    org.opencontainers.image.description="queues bundles of files and sends them to compute hosts" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
# A number, so that a container platform can check that it is not root.
RUN groupadd --gid 5000 ferryman \
    && useradd --uid 5000 --gid 5000 --no-create-home --home-dir /data ferryman \
    && install --directory --mode=0700 --owner=5000 --group=5000 /data
COPY --from=build /opt/ferryman /opt/ferryman
ENV PATH=/opt/ferryman/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    FERRYMAN_SERVER__DATA_DIR=/data
USER 5000:5000
WORKDIR /data
VOLUME /data
EXPOSE 5000
# /livez needs no token, and a full disk is no reason to start the container again. The port is PORT, as in job-orchestrator's compose file.
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('PORT', '5000') + '/livez', timeout=4)"]
# SIGTERM: running transfers may end within shutdown_grace; give it more than docker's 10 s.
STOPSIGNAL SIGTERM
ENTRYPOINT ["ferryman", "server"]
# Without tokens it refuses to listen here, and says what to do.
CMD ["--host", "0.0.0.0"]
