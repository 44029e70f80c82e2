# The bridge, its queue service and the command, with all extras, without compilers or caches, as a user of its own:
#
#   docker build -t queuebell:local .
#   docker run --rm -p 127.0.0.1:8470:8470 -v queuebell-data:/data queuebell:local
#
# Within its own network the container listens on every address, for what -p publishes is not its loopback, hence
# --insecure-public: nobody is asked who they are, so publish the port on loopback only, as above (docs/how-to/secure.md).
FROM python:3.14-slim
LABEL org.opencontainers.image.licenses=Apache-2.0

WORKDIR /srv/queuebell
COPY requirements-all.lock .
RUN pip install --no-cache-dir --require-hashes -r requirements-all.lock
COPY LICENSE README.md pyproject.toml setup.py ./
COPY bridge bridge
COPY listeners listeners
COPY queuebell queuebell
COPY examples examples
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --uid 10470 --no-create-home --home-dir /srv/queuebell --shell /usr/sbin/nologin queuebell \
    && install -d -o queuebell -g queuebell /data

USER queuebell
VOLUME /data
EXPOSE 8470
ENTRYPOINT ["queuebell"]
CMD ["serve", "--listen", "0.0.0.0:8470", "--insecure-public", "--data", "/data"]
