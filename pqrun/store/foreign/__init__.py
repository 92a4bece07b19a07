"""Transactions of other libraries: our own statements, run through the library that the transaction belongs to.

One module per library, and ``kinds``, which finds the right one without importing what the user has not imported. Nothing ever goes
around a library to the driver below it: SQLAlchemy's connection, for one, is in no transaction until SQLAlchemy has sent a statement.
"""
