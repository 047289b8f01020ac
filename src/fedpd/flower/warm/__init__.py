"""One warm ClientApp process per SuperNode, so that imports and compilation are paid once, not for every message."""
