"""The load generator: plays a schedule against a server and returns one raw record a request.

player.py starts the worker processes and collects their records; worker.py is what each of them runs. There
loops.py says when a request starts; connection.py (HTTP/1.1), sse.py (event stream), completion.py (what an
event says) and exchange.py lead from bytes to its record; ledger.py and received.py hold what is kept of all
of them. null_server.py and ceiling.py measure the client itself.
"""
