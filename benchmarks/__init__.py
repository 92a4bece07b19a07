"""Measurements of pqrun, each a module or package: ``python -m benchmarks`` lists them, ``python -m benchmarks NAME`` runs one."""
