"""What helps hard classes, where, and how sure are we? Every study of recipes/evidence, as one command.

    make evidence ARGS="--pets FOLDER --cifar100 FOLDER --only frozen --minutes 30"

Runs are those of `probe compare --recipes evidence/frozen`. Everything gets two seeds first, then the rest of
the seeds that its table names. What was found is published image by image, and all else follows from that:

    results/outcomes/*.json a study: which test images each row got right, with each seed
    results/<part>.csv      accuracy, gain over erm of the same settings, interval and p, by group
    results/forecast.csv    rank correlations of difficulty, known before training, with erm's errors
    results/left-out.csv    what was not run, or with fewer seeds than planned, and why
    docs/evidence.svg       gain on Hard against change overall

What is published is not run again, whatever machine it comes from, so the same command goes on where
another one stopped; `--results` names another folder to begin anew. Gains are corrected together (Holm),
all of one part. `--minutes 0` begins no run and writes the files again. Rows whose outcomes were not kept,
because they were run before there was a place for them, keep their lines, each with the number of
comparisons among which it was corrected.
"""
