from .connection import Connection

class ConnectionResource:
    def __init__(self, connection: Connection) -> None: ...
