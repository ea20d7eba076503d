"""Media types of files, by their names."""

from __future__ import annotations

import mimetypes
from typing import Final

UNKNOWN: Final = "application/octet-stream"
TEXT: Final = "text/plain"
_SHOWN_IMAGES: Final = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"}
)
"""Those that cannot hold a script: no SVG."""
_CODE: Final = frozenset({"text/css", "text/javascript", "application/javascript"})
"""What a page can load as a part of itself."""
_SHOWN_TEXT: Final = frozenset({"application/json", "application/xml"}) | _CODE
_TYPES: Final = mimetypes.MimeTypes(filenames=())
"""Without the files of the system, which differ."""
_TEXT_ENDINGS: Final = (
    "log out err md rst toml yaml yml ini cfg conf sh pl r jl nf smk wdl cwl "  # runs and programs
    "pdb ent pqr cif mmcif gro top itp mol mol2 sdf xyz "  # molecules
    "fa fasta faa fna ffn fastq fq aln sto gb gff gff3 gtf bed vcf sam nwk dot"  # sequences
)
for _ending in _TEXT_ENDINGS.split():
    _TYPES.add_type(TEXT, f".{_ending}")
for _type in ("webp", "avif"):
    _TYPES.add_type(f"image/{_type}", f".{_type}")


def media_type(path: str) -> str:
    """The type of a file called so."""
    name = path.rpartition("/")[2]
    found, encoding = _TYPES.guess_type(f"file:{name}" if ":" in name else name)
    if encoding is not None:  # what is inside is of that type, not the file
        return "application/gzip" if encoding == "gzip" else UNKNOWN
    return found or UNKNOWN


def shown_as(path: str) -> str | None:
    """The type that a browser may show the file as; None: it may only save it.

    All text is shown as plain text: a page or script is not run.
    """
    found = media_type(path)
    if found.startswith("text/") or found in _SHOWN_TEXT:
        return f"{TEXT}; charset=utf-8"
    return found if found in _SHOWN_IMAGES else None


def saved_as(path: str) -> str:
    """The type that a file is sent as to be saved: never as code, which a page of this server
    could load as its own by the file's address.
    """
    found = media_type(path)
    return TEXT if found in _CODE else found
