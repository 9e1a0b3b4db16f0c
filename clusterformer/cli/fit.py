"""`clusterformer fit`: train, into a run folder that can be resumed."""

from __future__ import annotations

HELP = """
usage: clusterformer fit --config NAME_OR_FILE [options]

Train a model. Progress, metrics, pictures and checkpoints go to a new folder, runs/NAME/NUMBER.

  --config FILE                   a YAML file, or the name of a shipped one, such as mr.yaml; give
                                  several to overlay them, the last wins
  --resume RUN                    go on with a killed or finished run, from its last checkpoint
  --runs DIR                      where run folders go (default: runs)
  --wandb                         log to Weights & Biases too (offline without an API key)
  --seed_everything N             seed of weights, dropout and batches (default: 0)
  --checkpoint_every N            steps between checkpoints within an epoch (default: 500)
  --keep N                        weights of the last N and best N validations, for test --average
  --against MODELS                train others likewise, end with a table (see quickstart.yaml)

data
  --data CLASS                    task, such as Classification; its options follow:
  --data.name mr                  data set, or --data.root DIR where the data sets are
  --data.help CLASS               all options of a task

model
  --model.attention CLASS         FullAttention, NeuralClusteringAttention, ...; options follow:
  --model.attention.num_clusters 16
  --model.attention.help CLASS    all options of a mechanism
  --model.decoder_attention CLASS of a decoder (default: as attention); also cross_attention, by
                                  which it reads the encoder (default: FullAttention)
  --model.outer_attention CLASS   of all layers but the central one (default: as attention)
  --model.d_model 128             width; also num_heads, num_layers, d_ff, dropout, norm, pooling,
                                  positions (sinusoidal, learned, rotary, none)
  --model.lr 0.001                peak learning rate; also weight_decay, warmup, schedule
  --model.clustering_weight 0.02  weight of the clustering loss; also sorting_weight

trainer (any option of Lightning's Trainer)
  --trainer.max_epochs 10         or --trainer.max_steps N
  --trainer.accelerator auto      cpu, gpu
  --trainer.devices 2             with --trainer.strategy ddp: the same global batches, shared out
  --trainer.precision bf16-mixed
  --trainer.fast_dev_run true     a few batches, nothing written: does it all run?

  --print_config                  show the whole configuration and stop
  --help-all                      every option there is

examples:
  clusterformer fit --config quickstart.yaml
  clusterformer fit --config mr.yaml --model.attention FullAttention --data.fold 3
  clusterformer fit --resume runs/mr/1 --trainer.max_epochs 20
  torchrun --nproc-per-node 4 -m clusterformer fit --config mr.yaml --trainer.devices 4
"""


def run(arguments: list[str]) -> None:
    """Train, then the models that it is to be compared with."""
    import time

    from clusterformer.cli.against import check_against, fit_against
    from clusterformer.cli.fitting import fit_run
    from clusterformer.cli.options import Options, pop_option
    from clusterformer.training.runs import Run

    begun = time.monotonic()
    folder, arguments = pop_option(arguments, "--resume")
    resumed = Run.open(folder) if folder else None
    if resumed:
        arguments = ["--config", str(resumed.config), *arguments]
    options = Options(arguments, fitting=True)
    check_against(options)
    first = fit_run(options, resumed)
    if options.config["against"]:
        fit_against(options, first, time.monotonic() - begun)
