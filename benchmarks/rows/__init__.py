"""The rows of the table: each measures one kind of work on all contenders."""
