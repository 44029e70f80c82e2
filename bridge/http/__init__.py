"""The bridge over HTTP: API, page, WebSockets of clients, the Azure Queue endpoint and its relay, and webhooks.

`api.app.WebServer`, `azure.server.AzureServer` and `azure.relay.RelayServer` are the servers, all of them an
`HttpServer`; a `wire.Wire` is one client's WebSocket; `webhooks.shell.Webhooks` sends wakes to configured addresses.
"""
