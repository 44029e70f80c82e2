"""What the three servers share: sockets, connections, bodies, answers, authorization and limits."""
