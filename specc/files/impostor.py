"""Files that are not what their name says: a download page, a pointer, an archive.

The commonest broken weights file is not a damaged one but another file under its name,
and saying which is worth more than naming the first byte that does not fit.
"""

import re
import shlex

_PART = re.compile(r"-\d+-of-\d+$")
"""What stands behind the name of a checkpoint that is cut into several files."""

_HEADS: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer: the file itself was not downloaded",
        "run `git lfs pull` in the repository it came from",
    ),
    (
        b"<!doctype",
        "a web page: the download gave a page instead of the file",
        "download it again, from the link to the raw file; gated files need you to be logged in",
    ),
    (
        b"<html",
        "a web page: the download gave a page instead of the file",
        "download it again, from the link to the raw file; gated files need you to be logged in",
    ),
    (
        b"pk\x03\x04",
        "a zip archive, probably a PyTorch checkpoint that torch.save wrote",
        "convert it to safetensors: {convert}",
    ),
    (
        b"\x80\x02",
        "a Python pickle, which can run code when it is read",
        "convert it to safetensors: {convert}",
    ),
    (
        b"\x80\x03",
        "a Python pickle, which can run code when it is read",
        "convert it to safetensors: {convert}",
    ),
    (
        b"\x80\x04",
        "a Python pickle, which can run code when it is read",
        "convert it to safetensors: {convert}",
    ),
    (
        b"\x80\x05",
        "a Python pickle, which can run code when it is read",
        "convert it to safetensors: {convert}",
    ),
    (b"\x1f\x8b", "a gzip archive", "unpack it first: gunzip FILE"),
    (b"\x93numpy", "a NumPy array", "specc reads weights from safetensors files"),
    (b"\x89hdf", "an HDF5 file", "specc reads weights from safetensors files"),
    (b"gguf", "a GGUF file", "specc reads weights from safetensors files"),
)

CONVERT = (
    'python -c "import sys, torch, safetensors.torch as s; '
    "s.save_file({k: v.clone().contiguous() for f in sys.argv[2:] "
    "for k, v in torch.load(f, weights_only=True).items()}, "
    'sys.argv[1])" {target} {source}'
)
"""The one command that turns a PyTorch checkpoint, of one file or several, into
safetensors; it unpickles data only, no code.
"""


def recognized(head: bytes, name: str = "FILE") -> tuple[str, str] | None:
    """What a file with these first bytes is, and what to do about it; nothing if it is
    no known impostor.
    """
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")[:64].lower()
    for mark, what, help in _HEADS:
        if start.startswith(mark):
            return what, help.replace("{convert}", conversion(name))
    return None


def conversion(*names: str) -> str:
    """The conversion command for a file of that name, or for those that a checkpoint
    is cut into.
    """
    stem = names[0].rsplit(".", 1)[0] if "." in names[0] else names[0]
    whole = stem if len(names) == 1 else _PART.sub("", stem)
    sources = " ".join(map(shlex.quote, names))
    target = shlex.quote(f"{whole}.safetensors")
    return CONVERT.replace("{source}", sources).replace("{target}", target)
