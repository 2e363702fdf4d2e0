# ParaDnn on CPUs, with TensorFlow. The mounted folder holds the store and the report:
#   docker build -t paradnn .
#   docker run --rm -v "$PWD:/results" paradnn train -m experiment=quick
#   docker run --rm -v "$PWD:/results" paradnn analysis report --out report.html
# Contention is measured for the control group of the container; --cpuset-cpus gives it dedicated cores.
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY analysis analysis
COPY conf conf
COPY hydra_plugins hydra_plugins
COPY paradnn paradnn
RUN python -m venv /opt/paradnn \
    && /opt/paradnn/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt .

FROM python:3.11-slim
COPY --from=build /opt/paradnn /opt/paradnn
ENV PATH=/opt/paradnn/bin:$PATH
VOLUME /results
WORKDIR /results
ENTRYPOINT ["paradnn"]
CMD ["--help"]
