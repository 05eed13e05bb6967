"""The installed package: stripped, and with the metadata that a registry shows."""

import struct
from importlib.metadata import metadata
from pathlib import Path

import chiplog


def sections(path: Path) -> set[str]:
    """Returns the names of the sections of a 64-bit ELF file, little-endian."""
    elf = path.read_bytes()
    assert elf[:6] == b"\x7fELF\x02\x01", path
    (at,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    (texts,) = struct.unpack_from("<Q", elf, at + names * size + 0x18)
    found = set()
    for n in range(count):
        (name,) = struct.unpack_from("<I", elf, at + n * size)
        found.add(elf[texts + name : elf.index(b"\0", texts + name)].decode())
    return found


def test_the_library_is_stripped() -> None:
    from chiplog import _chiplog

    assert _chiplog.__file__ is not None
    found = sections(Path(_chiplog.__file__))
    assert ".text" in found and ".dynsym" in found
    assert not {name for name in found if name.startswith(".debug")} and ".symtab" not in found


def test_the_metadata_is_complete() -> None:
    told = metadata("chiplog")
    assert told["Version"] == chiplog.__version__
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Author"] and told["Keywords"] and told["Summary"]
    classifiers = told.get_all("Classifier") or []
    assert "Operating System :: POSIX :: Linux" in classifiers
    description = told.get_payload()  # type: ignore[attr-defined]
    assert "import chiplog" in description and "](" not in description, "a relative link is broken there"
