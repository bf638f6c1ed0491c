"""An MCP server of a small shop, for tests: stdio, or HTTP on a port that it prints."""

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shop")
counter = {"calls": 0}
# So that tests can look for processes that were left running.
if log := os.environ.get("SHOP_PIDS"):
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()}\n")


@server.tool()
def price(item: str) -> float:
    """Return the price of an item of the shop in euros."""
    counter["calls"] += 1
    if item == "crash":
        os._exit(3)
    if item == "hang":
        import time

        time.sleep(3600)
    if item not in ("tea", "cup"):
        raise ToolError(f"there is no item {item!r}")
    return {"tea": 4.5, "cup": 12.0}[item]


@server.tool()
def calls() -> int:
    """Return how many prices this process was asked for."""
    return counter["calls"]


if __name__ == "__main__":
    if "--http" in sys.argv:
        import socket

        import uvicorn

        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="error")
        uvicorn.Server(config).run(sockets=[listening])
    else:
        server.run("stdio")
