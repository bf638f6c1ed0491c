"""Forward connections from inside a sandbox to Proctor, through a Unix socket in a shared folder.

Usage: python3 _forward.py SOCKET PORTS PROXY_PORT COMMAND…

Runs inside the sandbox, so it uses the standard library alone and imports nothing of Proctor. It
listens before the command starts, then serves from a process of its own without standard streams,
so that nothing waits for it. Connections to PORTS become tunnels to the same ports outside; those
to PROXY_PORT speak the proxy protocol themselves. The other end decides what may be reached.
"""

import os
import socket
import sys
import threading


def main() -> None:
    """Listen, fork the server, and become the command."""
    path, ports, proxy, *command = sys.argv[1:]
    listeners: list[tuple[socket.socket, bytes]] = []
    for port in [int(each) for each in (*ports.split(","), proxy) if each and each != "0"]:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        opening = b"" if str(port) == proxy else b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port
        listeners.append((listener, opening))
    if os.fork() == 0:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        for listener, opening in listeners[1:]:
            threading.Thread(target=serve, args=(listener, path, opening), daemon=True).start()
        serve(listeners[0][0], path, listeners[0][1])
    for listener, _ in listeners:
        listener.close()
    os.execvp(command[0], command)  # noqa: S606 (the command of the caller)


def serve(listener: socket.socket, path: str, opening: bytes) -> None:
    """Accept connections for ever."""
    while True:
        client, _ = listener.accept()
        threading.Thread(target=tunnel, args=(client, path, opening), daemon=True).start()


def tunnel(client: socket.socket, path: str, opening: bytes) -> None:
    """Connect a client to the other end of the socket."""
    outside = socket.socket(socket.AF_UNIX)
    try:
        outside.connect(path)
        if opening:
            outside.sendall(opening)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += outside.recv(1) or sys.exit()
            if b" 200 " not in head.split(b"\r\n")[0] + b" ":
                sys.exit()
        threading.Thread(target=pump, args=(client, outside), daemon=True).start()
        pump(outside, client)
    except (OSError, SystemExit):
        client.close()
        outside.close()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy one direction until it ends."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        target.close()


if __name__ == "__main__":
    main()
