"""Environments of uv.lock for boxes without a registry: packed here, installed there by remote/wheelhouse.sh.

locked.py    which wheels an environment of the lock holds, on Linux x86-64, for one Python
download.py  loads them with pip, uv and CPython as well, into a cache that is checked by hash
parts.py     one tar stream, cut into parts
manifest.py  what a wheelhouse holds, with every SHA-256
pack.py      all of it
box.py       the part of the installation that needs Python; standard library only
"""
