"""In the guest: which pyverbs is used, and the ports that it shows; one JSON line."""

import json
import sys

from fscommon.net.rdma import Wishes, choose, find_ports


def main() -> None:
    ports = [repr(one) for one in choose(find_ports(), Wishes())]
    print(json.dumps({"pyverbs": list(sys.modules["pyverbs"].__path__), "ports": ports}))


if __name__ == "__main__":
    main()
