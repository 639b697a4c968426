"""MosaicML's MDS writer as a peer of the offline stage: a script without our packages, for an environment of its own.

mosaicml-streaming wants other versions of torch and transformers than we do; `remask bench prep --mds-python` names the interpreter.

    python mds_writer.py FOLDER TIMED
"""

import json
import os
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np
from streaming import MDSWriter
from tokenizers import Tokenizer


def write(text: str, tokenizer: str, out: str) -> None:
    encode = Tokenizer.from_file(tokenizer)
    with MDSWriter(out=out, columns={"ids": "ndarray:uint16"}) as writer, Path(text).open(encoding="utf-8") as lines:
        for line in lines:
            ids = encode.encode(json.loads(line)["text"], add_special_tokens=False).ids
            writer.write({"ids": np.array(ids, dtype=np.uint16)})


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main(folder: str, timed: str) -> None:
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    seconds = 0.0
    for file in ("warm.jsonl", timed):
        with tempfile.TemporaryDirectory(dir=folder) as out:
            start = cpu_seconds()
            write(f"{folder}/{file}", f"{folder}/tokenizer.json", f"{out}/mds")
            seconds = cpu_seconds() - start
    print(json.dumps({"cpu_s": seconds, "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}))


if __name__ == "__main__":
    main(*sys.argv[1:])
