"""How jobs run: asyncio loops, one duty each. No SQL."""
