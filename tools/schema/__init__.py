"""How two installed schemas differ: tables, columns, constraints, indexes, functions, rights.

python -m tools.schema compare URL URL [--schema NAME [NAME]] [--rows]
python -m tools.schema against CHECKOUT [--on SERVER]...

The second form installs the schema twice on a server for the moment: by the program of another
checkout, for example a worktree of the commit before, and by that of this one.
"""
