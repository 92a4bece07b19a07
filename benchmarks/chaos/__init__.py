"""Load, faults in turn, and the proof that nothing was lost and nothing ended twice: ``python -m benchmarks chaos``.

Processes write what they do to files outside of the database (``log``): producers (``produce``) what was acknowledged, workers (``work``)
every start and end of a handler (``load``). The command hurts worker processes (``crowd``) and the database (``sites``) in turn
(``faults``), lets the load drain, and has ``checker`` hold the files against the rows; ``report`` tells what it came to.
"""
