# fnlkit with the versions of .ci/constraints.txt, for CPUs; compiled kernels are part of the image.
#   docker build -t fnlkit . && docker run --rm fnlkit doctor
FROM python:3.11-slim
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu NUMBA_CACHE_DIR=/opt/kernels
COPY pyproject.toml setup.py README.md LICENSE /src/
COPY .ci/constraints.txt /src/.ci/
COPY fnlkit /src/fnlkit
COPY cli /src/cli
COPY data /src/data
RUN pip install --no-cache-dir -c /src/.ci/constraints.txt "/src[train]"
RUN fnlkit doctor --compile
WORKDIR /work
ENTRYPOINT ["fnlkit"]
