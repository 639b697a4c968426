"""MosaicML's streaming dataset as a peer of the loader: reads rows and masks nothing. A script for an environment of its own.

python mds_reader.py FOLDER --write     makes FOLDER/mds from FOLDER/rows.npz
python mds_reader.py FOLDER             reads it
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from streaming import MDSWriter, StreamingDataset

_STARTED = time.perf_counter()
_SECONDS = 1.5


def write(folder: Path) -> None:
    packed = np.load(folder / "rows.npz")
    with MDSWriter(out=str(folder / "mds"), columns={"ids": "ndarray:uint16"}) as writer:
        for ids in np.split(packed["ids"], np.cumsum(packed["lengths"])[:-1]):
            writer.write({"ids": ids})


def read(folder: Path) -> None:
    rows = StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=256)
    tokens, cold, start = 0, 0.0, 0.0
    while True:
        for row in rows:
            cold = cold or time.perf_counter() - _STARTED
            start = start or time.process_time()
            tokens += len(row["ids"])
            if time.process_time() - start > _SECONDS:
                print(json.dumps({"mtok_per_cpu_s": tokens / (time.process_time() - start) / 1e6, "cold_s": cold}))
                return


if __name__ == "__main__":
    (write if sys.argv[2:] == ["--write"] else read)(Path(sys.argv[1]))
