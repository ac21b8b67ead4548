"""The network is cut for a while, silently or with resets, and restored."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from faults.load import Load
from faults.proxy import Proxy
from faults.setting import Run, Setting
from narrowcast.broker import NatsServer

#: Seconds that a cut lasts, and under load before and after it.
CUT, CALM = 10.0, 4.0


def cut(
    folder: Path, load: Load, *, resets: bool = False, clients: bool = False, seconds: float = CUT
) -> Run:
    """Cut the network between the node and the server, or between clients and the server.

    Parameters
    ----------
    folder, load
        Folder of all files, and the load.
    resets
        Whether connections are reset and new ones refused; otherwise bytes are held back silently.
    clients
        Whether to cut the clients' network.
    seconds
        Duration of a cut. Recovery times count from its end.
    """
    with ExitStack() as stack:
        server = stack.enter_context(NatsServer(folder / "nats"))
        proxy = stack.enter_context(Proxy(server.port))
        setting = Setting(stack, folder, load, nats=server.url if clients else proxy.url)
        setting.start(proxy.url if clients else server.url)
        time.sleep(CALM)
        if resets:
            proxy.reset()
        else:
            proxy.cut()
        time.sleep(seconds)
        proxy.heal()
        healed = time.time()
        time.sleep(CALM)
        setting.end()
        setting.check_alive_but_publishers()
        return setting.judge([healed])
