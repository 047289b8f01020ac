"""The reverse proxy in front of a SuperLink, which shows clients the fleet API and nothing else.

A SuperLink serves three APIs on one port without asking who a user is: the fleet API for SuperNodes, the control API of
`flwr run` and `flwr stop`, and the runtime API of ServerApps. Whoever reaches the control API can run code on every
client. So the SuperLink listens on 127.0.0.1 only, and nginx passes on the requests that a SuperNode with a registered
key makes. An operator uses `flwr run` on the server itself.
"""

import os
import shutil
from pathlib import Path

from fedpd.flower.local.certificates import ServerCertificates

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
PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin")  # where nginx may be if it is not on PATH


def find_nginx() -> str | None:
    """Return the path of nginx; None if it is not installed."""
    return shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))


def proxy_config(listen: str, link: str, certificates: ServerCertificates, *, user: str = "") -> str:
    """Return nginx's configuration.

    Args:
        listen: The address and port for clients, e.g. "0.0.0.0:8443".
        link: The address and port of the SuperLink, e.g. "127.0.0.1:8000".
        certificates: The files of the certificate, for clients and of the SuperLink itself. Relative paths start at
            the folder of the configuration.
        user: The user of nginx's processes if root starts it; by default nginx's own.
    """
    paths = "|".join(FLEET)
    return f"""# Clients reach only the fleet API of the SuperLink at {link}. Written by fedpd.
{f"user {user};" if user else "# It needs no root, except for a port below 1024."}
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path nginx-temporary/body;
    proxy_temp_path nginx-temporary/proxy;
    fastcgi_temp_path nginx-temporary/fastcgi;
    uwsgi_temp_path nginx-temporary/uwsgi;
    scgi_temp_path nginx-temporary/scgi;
    client_max_body_size 0;       # a message holds a model
    proxy_request_buffering off;  # pass models on as they arrive
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
        default_type text/plain;
        location ~ ^/v1/fleet/({paths})$ {{
            limit_except POST {{ deny all; }}
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host localhost;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_ssl_trusted_certificate {certificates.authority};
            proxy_pass https://superlink$uri;
        }}
        location / {{
            return 403 "Only the fleet API for registered clients is open here.\\n";
        }}
    }}
}}
"""


def proxy_command(folder: Path, config: Path) -> list[str]:
    """Return the command of nginx, which keeps all its files in a folder.

    Raises:
        FileNotFoundError: If nginx is not installed.
    """
    program = find_nginx()
    if program is None:
        raise FileNotFoundError("nginx")
    return [program, "-p", str(folder), "-c", str(config), "-e", "stderr"]
