"""The reverse proxy in front of a SuperLink: it knows the clients, and shows them the fleet API and nothing else.

A SuperLink serves three APIs on one port without asking who a user is: the fleet API for SuperNodes, the control API of
`flwr run` and `flwr stop`, and the runtime API of ServerApps. Whoever reaches the control API can run code on every
client. So the SuperLink listens on 127.0.0.1 only, and nginx passes on the requests that a SuperNode with a registered
key makes. An operator uses `flwr run` on the server itself.

A stranger reaches no Python. A client shows its certificate in the TLS handshake, and nginx answers others after the
header of their request, with 400 or 403. It reads a whole body before it asks the SuperLink, so a slow client occupies
only nginx. The limits follow from what a SuperNode does: Flower cuts arrays into objects of 5 MiB and sends each in a
request of its own, so the largest body does not grow with the model; a SuperNode uses a few connections at a time.
"""

import os
import shutil
from pathlib import Path

from fedpd.flower.local.certificates import ServerCertificates
from fedpd.flower.private import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from fedpd.flower.warm.program import STATUS

# What a SuperNode with a registered key asks for. It does not need register-node, which is for nodes without a key.
FLEET = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
SITES = "sites.map"  # the serial number of each client's certificate, and the client's name
OBJECT = 4 * FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # bytes of the largest body: an object of a message; a chunk has 5 MiB
SMALL = 2**20  # bytes of the largest body of other requests; the longest lists the objects of a message, 64 each
CONNECTIONS = 4096  # that nginx holds, with those to the SuperLink
PER_SITE, PER_ADDRESS = 32, 256  # requests at a time; several clients may share an address
RATE = 50  # requests per second of a client; each object of 5 MiB is one
BURST = 500  # requests beyond the rate, which nginx delays
HEADER, BODY = 10, 30  # seconds for TLS and the header, and between two parts of a body
PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin")  # where nginx may be if it is not on PATH


def find_nginx() -> str | None:
    """Return the path of nginx; None if it is not installed."""
    return shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))


def proxy_config(
    listen: str, link: str, certificates: ServerCertificates, *, user: str = "", sites: Path | None = None
) -> str:
    """Return nginx's configuration.

    Args:
        listen: The address and port for clients, e.g. "0.0.0.0:8443".
        link: The address and port of the SuperLink, e.g. "127.0.0.1:8000".
        certificates: The files of the certificate, for clients and of the SuperLink itself. Relative paths start at
            the folder of the configuration.
        user: The user of nginx's processes if root starts it; by default nginx's own.
        sites: The file with the clients' certificates (`SITES`); None: clients have none, on one machine.
    """
    paths = "|".join(FLEET)
    limits = "" if sites is None else _LIMITS
    return f"""# Clients reach only the fleet API of the SuperLink at {link}. Written by fedpd.
{f"user {user};" if user else "# It needs no root, except for a port below 1024."}
daemon off;
worker_processes 1;
worker_rlimit_nofile {2 * CONNECTIONS};
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections {CONNECTIONS}; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path nginx-temporary/body;
    proxy_temp_path nginx-temporary/proxy;
    fastcgi_temp_path nginx-temporary/fastcgi;
    uwsgi_temp_path nginx-temporary/uwsgi;
    scgi_temp_path nginx-temporary/scgi;
{"" if sites is None else _KNOWN.format(sites=sites)}    client_header_timeout {HEADER}s;
    client_body_timeout {BODY}s;
    send_timeout {BODY}s;
    keepalive_timeout 75s;
    lingering_time 5s;            # how long nginx reads on after it has refused a request
    lingering_timeout 1s;
    reset_timedout_connection on;
    client_body_buffer_size 64k;
    client_max_body_size {SMALL};
    proxy_request_buffering on;   # a slow client occupies nginx, and no Python
    proxy_buffering off;
    proxy_read_timeout 600s;
    proxy_send_timeout 600s;
    upstream superlink {{
        server {link};
        keepalive 8;
    }}
    server {{
        listen {listen} ssl;
        ssl_certificate {certificates.certificate};
        ssl_certificate_key {certificates.key};
        ssl_protocols TLSv1.2 TLSv1.3;
{"" if sites is None else _ASKED.format(authority=certificates.authority)}        default_type text/plain;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host localhost;
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_ssl_trusted_certificate {certificates.authority};
        location = /v1/fleet/push-object {{
            limit_except POST {{ deny all; }}
            client_max_body_size {OBJECT};{limits}
            proxy_pass https://superlink$uri;
        }}
        location ~ "^/v1/fleet/({paths})\\z" {{
            limit_except POST {{ deny all; }}{limits}
            proxy_pass https://superlink$uri;
        }}
        location = {STATUS} {{
            limit_except GET {{ deny all; }}
            client_max_body_size 1;{limits}
            proxy_pass https://superlink$uri;
        }}
        location / {{
            return 403 "Only the fleet API for registered clients is open here.\\n";
        }}
    }}
}}
"""


_KNOWN = f"""    # A client is known by the serial number of its certificate. It may use so much at a time.
    map_hash_bucket_size 256;
    map $ssl_client_serial $site {{{{
        default "";
        include {{sites}};
    }}}}
    limit_conn_zone $site zone=per_client:1m;
    limit_conn_zone $binary_remote_addr zone=per_address:1m;
    limit_req_zone $site zone=rate:1m rate={RATE}r/s;
"""
_ASKED = """        ssl_client_certificate {authority};
        ssl_verify_client on;
        ssl_verify_depth 1;
        if ($site = "") {{
            return 403 "This server does not know the certificate. Ask its operator for a kit.\\n";
        }}
"""
_LIMITS = f"""
            limit_conn per_client {PER_SITE};
            limit_conn per_address {PER_ADDRESS};
            limit_req zone=rate burst={BURST};"""


def proxy_command(folder: Path, config: Path) -> list[str]:
    """Return the command of nginx, which keeps all its files in a folder.

    Raises:
        FileNotFoundError: If nginx is not installed.
    """
    program = find_nginx()
    if program is None:
        raise FileNotFoundError("nginx")
    return [program, "-p", str(folder), "-c", str(config), "-e", "stderr"]
