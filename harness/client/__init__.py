"""The load generator: plays a schedule against a server and returns one raw record a request.

player.py starts the worker processes and collects their records; worker.py is what each of them runs; below
it connection.py (HTTP/1.1), sse.py (event stream), completion.py (what an event says) and exchange.py (from
the events of one request to its record). null_server.py and ceiling.py measure the client itself.
"""
