"""The response cache: answers of models that say `response_cache { enable: true }`, kept to be given again.

`contract` is what the engine knows; `local` keeps answers in this process, `redis` in a server that several processes share.
`core` decides what is kept, what an answer's key is, and who waits for whom; all of it is sans-IO.
"""
