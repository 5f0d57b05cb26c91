# syntax=docker/dockerfile:1
FROM golang:1.26.7-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.release=${VERSION}" -o /headgate ./cmd/headgate
# An empty directory with the right owner: there is no shell in the final image to make one.
RUN mkdir -p /empty

# Nothing but the binary and the certificates for providers over TLS.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build --chown=65532:65532 /empty /var/lib/headgate
COPY --from=build /headgate /headgate
USER 65532:65532
WORKDIR /var/lib/headgate
# Settlements that Redis did not acknowledge wait here; mount a volume where containers are replaced while Redis is away.
ENV HG_SPOOL_DIR=/var/lib/headgate/spool
EXPOSE 8080 9090
# For health checks: "/headgate ready" in the container (as docker-compose.yml does; none stands here, since the image also
# runs sim), or /livez and /readyz on the admin port (HG_ADMIN_LISTEN), which need no token; the rest of that port does where
# it is not on loopback.
ENTRYPOINT ["/headgate"]
CMD ["serve"]
