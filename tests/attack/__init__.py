"""Attacks on a running `tpy serve`: hostile input and faults, and what others feel of it.

`tests/security` asks whether an attack is refused, `tests/chaos` whether promises hold under faults; here it is measured what
each costs: how long `/v2/health/live` took at worst, how much memory the server held and kept, and how many answers of others
were wrong or missing.
"""
