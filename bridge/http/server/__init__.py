"""The common parts of the three servers: sockets, connections, bodies, answers, authorization and limits."""
