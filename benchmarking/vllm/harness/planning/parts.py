"""Answers of a run that is not over, in a folder under OUTPUT_PATH named by what was asked for.

Same dataset (by fingerprint), same model and load format, same output length, same folder: whoever finds parts there
goes on from them. A part appears whole or not at all.
"""

import hashlib
import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import config
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from harness import continuity
from harness.data import dataset, storage

# More parts than are read without a word: engines start afterwards.
MANY = 100


@dataclass
class Parts:
    files: Any  # pafs.FileSystem
    folder: str
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])  # two runs do not write each other's parts
    count: int = 0

    @classmethod
    def open(cls) -> "Parts | None":
        """None where the user does not want the answers, or where it is not known for which dataset."""
        if config.OUTPUT_PATH is None or continuity.current.fingerprint is None:
            return None
        files, folder = storage.filesystem(config.OUTPUT_PATH)
        return cls(files, f"{folder}/unfinished-{_digest(continuity.current.fingerprint)}")

    def write(self, batch: pa.RecordBatch) -> None:
        # Each time: another run of the same may have ended meanwhile, and taken the folder away.
        self.files.create_dir(self.folder)
        name = f"{self.run}-{self.count:06}.parquet"
        self.count += 1
        storage.write_table(pa.Table.from_batches([batch]), self.files, f"{self.folder}/{name}")

    def read(self) -> Iterator[pa.Table]:
        """Every kept row once, a part at a time: all together may not fit in memory, nor in one array of text."""
        selector = pafs.FileSelector(self.folder, allow_not_found=True)
        names = sorted(info.path for info in self.files.get_file_info(selector) if info.base_name[0] != ".")
        if len(names) > MANY:
            print(f"reading {len(names):,} kept parts in {self.folder}", file=sys.stderr)
        ids = {name: part for name in names if (part := self._part(name, ["id"])) is not None}
        if not ids:
            return
        together = pa.concat_tables(ids.values())["id"]
        first = np.zeros(len(together), bool)
        first[pc.index_in(together.unique(), value_set=together.combine_chunks()).to_numpy()] = True
        begin = 0
        for name, known in ids.items():
            if (part := self._part(name)) is not None:
                yield part.filter(pa.array(first[begin : begin + len(part)]))
            begin += len(known)

    def _part(self, name: str, columns: list[str] | None = None) -> pa.Table | None:
        # Read first: a store that does not answer is no damage. Arrow says OSError of both.
        with self.files.open_input_file(name) as file:
            content = pa.BufferReader(file.read_buffer())
        try:
            return pq.read_table(content, columns=columns, page_checksum_verification=True)
        except (pa.ArrowInvalid, OSError) as error:  # as a machine that lost its power leaves one
            print(f"left out: {name} is damaged ({error}); its rows are answered again", file=sys.stderr)
            return None

    def discard(self) -> None:
        """When the run's answers are written as a whole."""
        if self.files.get_file_info(self.folder).type == pafs.FileType.Directory:
            self.files.delete_dir(self.folder)


def _digest(fingerprint: str) -> str:
    """Of all that decides what an answer is; folders of one name may hold different weights, and "dummy" ones are none
    of theirs."""
    lengths = [getattr(config, f"OUTPUT_LEN{part}") for part in ("", "_DISTRIBUTION", "_MIN", "_MAX")]
    # A fingerprint is of ids as text, and parts hold them as the dataset does.
    id_type = str(dataset.schema(config.INPUT_PATH).field("id").type)
    model = [config.MODEL_NAME, config.LOAD_FORMAT, config.LOGITS_PROCESSORS]
    subject = [fingerprint, id_type, *model, config.SAMPLING_PARAMS, lengths]
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]
