"""Workers of a Dask cluster, behind the interface that processes have. Needs the extra `dask`, and imports it late.

place     what a user may write for a cluster, and the connection to it
modules   which of the user's own modules a piece of work needs
luggage   what travels: the work itself, files of inputs, modules; packed here, opened in a worker
pieces    how items become tasks of a second or a few
work      items to results, whatever dies meanwhile
"""
