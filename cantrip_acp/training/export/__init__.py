"""Export: threads of a loom in the shapes that trainers and trace stores read; one file a format, named in `registry`.

Every format gets the same thing: what the crystal really saw (`seen`), and which threads are whole (`source`).
"""
