"""numpy over a log's batches, without a copy: each record is 64 measurements of 32 bits.

pip install numpy
python examples/numpy_batches.py
"""

import sys
import tempfile

import chiplog

try:
    import numpy as np
except ImportError:
    sys.exit("numpy_batches.py: this example needs numpy: pip install numpy")

RECORDS, EACH = 20_000, 64


def main() -> None:
    with tempfile.TemporaryDirectory() as dir, chiplog.Log(dir) as log:
        random = np.random.default_rng(1)
        measured = random.integers(0, 1_000, (RECORDS, EACH), dtype=np.int32)
        for chunk in np.split(measured, 20):
            log.append_batch(list(chunk))  # a row of an array is a buffer, and so a record

        total, highest, shared = 0, 0, 0
        for batch in log.batches():
            data, offsets = batch.to_numpy()  # the log's own bytes, and the starts and ends of records
            assert (np.diff(offsets) == 4 * EACH).all()
            values = data.view(np.int32).reshape(len(batch), EACH)
            assert not values.flags.owndata and not values.flags.writeable
            total += int(values.sum())
            highest = max(highest, int(values.max()))
            shared += data.nbytes
        assert (total, highest) == (int(measured.sum()), int(measured.max()))
        print(f"{RECORDS:,} records, {shared:,} bytes seen in place: sum {total:,}, highest {highest}")


if __name__ == "__main__":
    main()
