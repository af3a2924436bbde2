"""A backend whose package lacks something that it needs."""

import a_package_that_nobody_has  # type: ignore[import-not-found]  # that is the point

create = a_package_that_nobody_has.create
