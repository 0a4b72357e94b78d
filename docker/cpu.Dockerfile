# The laptop profile in a container: two cores, 12 GiB of memory, no GPU.
#
#   docker build -f docker/cpu.Dockerfile -t retrain-dspark:cpu .
#   docker run --rm -it --shm-size=2g -v "$PWD/runs:/app/runs" retrain-dspark:cpu run -p laptop
#
# vLLM's workers exchange data through /dev/shm, and Docker's 64 MiB are too few: hence --shm-size.
# Not built by the tests, which run without a Docker daemon: try it after changing it.
FROM python:3.11-slim-bookworm

# Those that set-up would install, in a layer of their own; procps is for people who look inside.
RUN apt-get update \
    && apt-get install -y --no-install-recommends git make libibverbs1 libnuma1 libcurl4 util-linux procps \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY . .

# One layer: environment, converted target and stamp. The cache of downloads would only make the image larger.
ENV XDG_CACHE_HOME=/app/cache
RUN UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1 make setup PYTHON=python3

# A run needs no rights on the system.
RUN useradd --create-home runner && mkdir -p runs && chown -R runner:runner runs cache
USER runner

ENV RETRAIN_DSPARK_RUNS=/app/runs
ENTRYPOINT ["/app/.venv/bin/retrain-dspark"]
CMD ["run", "-p", "laptop"]
