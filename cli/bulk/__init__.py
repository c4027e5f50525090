"""``onestream bulk``: many images into one table, in an order that a later run can go on with."""
