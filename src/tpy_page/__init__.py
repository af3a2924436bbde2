"""The page for browsers: HTML, a style sheet and JavaScript in `files`, and the handler that gives them out. The HTTP frontend
finds it by the entry point `page` of `tpy.pages`, and serves it at `/page/`.

Never does: ask the server itself. What the page shows, its JavaScript asks the API for.
"""
