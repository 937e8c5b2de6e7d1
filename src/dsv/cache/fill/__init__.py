"""Filling a cache with a commit, shared by every process and host that asks for it.

    fill.fill             the commit is visible: `lookup` returns it. Else `Fill.run` tries until it is
      directory.join        a fill is under way: take part in it
      Fill._begin           none is: `plan.make_plan` DECIDES where each entry comes from (the source map) and cuts
        |                   the parts, `ensure_room` makes room for them, `directory.start` makes the fill's folder
        v
    FillParticipant.run   in each process that asks; all work by the same plan
      Helpers.start         more processes of this host (helper_process), each with a `PartWorker` of its own
      FillParticipant._work until all parts are done: free parts first, then those of processes that are gone
        |
        |  ClaimTable.claim_free, claim_abandoned: decide who does a part
        v
    PartWorker.run        the claimed parts, in one thread; on a file server `PartWriter` has threads to link and write
      FillContents.in_runs  reads the part's segments, ahead of the writing, with the plan's decision for each entry
      PartWriter.take_run, take        LINK files of other cached commits, or copy them
      StoreSource.files     FETCHES the other files, and those that could not be linked (`_not_linked`)
      PartWriter.write      writes what was fetched, as it arrives
      PartWorker._finish    waits for all files of a part (`settle`), then `ClaimTable.finish` marks it as done
        v
    FillParticipant._publish   the first that sees all parts done: checks, syncs, `directory.publish` renames the tree

Who takes over a part looks at each file of it first (`PartWriter.examine`), and replaces those that are broken.
docs/internals/cache-protocol.md has the rules: F the flow, W late writers, K links, R room, S storage.
"""
