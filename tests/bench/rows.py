"""Writes the rows of a .npy file of f4 as Redis commands: SET key:%012d ROW.

usage: python3 rows.py rows.npy > commands
"""
import ast
import struct
import sys

with open(sys.argv[1], "rb") as f:
    assert f.read(8) == b"\x93NUMPY\x01\x00", "want .npy, version 1"
    head = ast.literal_eval(f.read(struct.unpack("<H", f.read(2))[0]).decode("latin1"))
    assert head["descr"] == "<f4" and not head["fortran_order"], head
    rows, dim = head["shape"]
    out = sys.stdout.buffer
    for i in range(rows):
        row = f.read(4 * dim)
        assert len(row) == 4 * dim, "the file is truncated"
        out.write(b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$%d\r\n%s\r\n" % (i, len(row), row))
