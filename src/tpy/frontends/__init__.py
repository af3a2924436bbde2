"""The frontends: ports for clients, each an entry of one table (`tpy.frontends.table`), over one transport."""
