"""`clusterformer fit`: train a model, into a run directory that can be resumed."""

from __future__ import annotations

HELP = """
usage: clusterformer fit --config NAME_OR_FILE [options]

Train a model. Metrics, pictures and checkpoints go to a new directory, runs/NAME/NUMBER.

  --config FILE                   YAML file, or a shipped name (mr.yaml); several go over each other
  --resume RUN                    continue a killed or finished run from its last checkpoint
  --trust PACKAGE                 with --resume: let the run import classes of that package too
  --runs DIR                      parent of the run directories (default: runs)
  --wandb                         log to Weights & Biases too (offline without an API key)
  --seed_everything N             seed of weights, dropout and batches (default: 0)
  --checkpoint_every N            steps between checkpoints within an epoch (default: 500)
  --keep N                        keep weights of the last and best N validations (test --average)
  --average N                     use the mean of the weights after the last N validations
  --patience N                    stop after N validations without gain; the best one counts
  --monitor NAME                  value that chooses the best checkpoint, such as val/f1
  --pictures false                no learning curves, no pictures of clusters
  --baselines false               no simple methods beside the result of a text classifier
  --method NAME                   train only a simple method, such as "TF-IDF + linear SVM"
  --against MODELS                train other models likewise, end with a table (quickstart.yaml)

data
  --data CLASS                    task, such as Classification, or your own: mypackage.MyTask, of
                                  the current folder or installed; its options follow:
  --data.name mr                  data set; --data.root DIR is the folder of the data sets
  --data.help CLASS               all options of a task

model
  --model.attention CLASS         NeuralClusteringAttention, ..., or mypackage.MyAttention; its
                                  options follow, such as --model.attention.num_clusters 16
  --model.attention.help CLASS    all options of a mechanism
  --model.decoder_attention CLASS mechanism of a decoder (default: as attention); cross_attention is
                                  that between decoder and encoder (default: FullAttention)
  --model.outer_attention CLASS   mechanism of all but the central layer (default: as attention)
  --model.d_model 128             width; also num_heads, num_layers, d_ff, dropout, norm, pooling,
                                  positions (sinusoidal, learned, rotary, none)
  --model.pretrained NAME         start from a model of Hugging Face's, by name or folder, with its
                                  tokenizer; --model.attention replaces its attention
  --model.freeze true             keep its weights; --model.pretrained_lr 5e-5 is their peak rate
  --model.calibration_texts 300   texts to which its new clusters are fitted first; 0 for none
  --model.init_from RUN           start from a run of any task; all its weights are trained with lr
  --model.lr 0.001                peak; also weight_decay, warmup, schedule, lr_floor, betas
  --model.clustering_weight 0.02  weight of the clustering loss; also sorting_weight

trainer (any option of Lightning's Trainer)
  --trainer.max_epochs 10         or --trainer.max_steps N
  --trainer.accelerator auto      cpu, gpu
  --trainer.devices 2             with --trainer.strategy ddp: the same global batches, split;
                                  fsdp2 divides the weights too, sequence_parallel the sequences
  --trainer.precision bf16-mixed
  --trainer.fast_dev_run true     test with a few batches; write nothing

  --print_config                  print the whole configuration and stop
  --help-all                      all options

examples:
  clusterformer fit --config quickstart.yaml
  clusterformer fit --config mr.yaml --model.attention FullAttention --data.fold 3
  clusterformer fit --resume runs/mr/1 --trainer.max_epochs 20
  torchrun --nproc-per-node 4 -m clusterformer fit --config mr.yaml --trainer.devices 4
"""


def run(arguments: list[str]) -> None:
    """Train, then the models that it is to be compared with."""
    from clusterformer.cli.against import Outcome, check_against, fit_against
    from clusterformer.cli.fitting import ended_by, fit_method, fit_run, ignored_options
    from clusterformer.cli.options import Options, pop_option
    from clusterformer.compare.child import end_with_parent
    from clusterformer.training.runs import Run, first_process
    from clusterformer.training.saved import checkpoint_to_resume
    from clusterformer.training.trusted import Named, read_run_config
    from clusterformer.working_folder import import_from_working_folder

    end_with_parent()
    folder, arguments = pop_option(arguments, "--resume")
    trust, arguments = pop_option(arguments, "--trust", several=True)
    resumed = Run.open(folder) if folder else None
    base = None
    if resumed:
        resumed.refuse_links()
        import_from_working_folder()
        base = read_run_config(resumed.config, Named.by(arguments, trust))
    options = Options(arguments, fitting=True, base=base)
    resume = checkpoint_to_resume(resumed) if resumed else None
    if resumed and resume and (ends := ended_by(resumed, resume, options)):
        ignored = ignored_options(options, resumed)
        if first_process():
            print(
                f"{resumed.folder}: finished, nothing is left to train; to train on, raise "
                + " and ".join(ends)
                + f"; without effect: {', '.join(ignored)}" * bool(ignored)
            )
        if options.config["against"]:
            check_against(options)
            fit_against(options, Outcome.of_run(resumed), resumed)
        return
    if options.config["method"]:
        fit_method(options, resumed)
        return
    check_against(options)
    first = fit_run(options, resumed, resume)
    if options.config["against"] or options.config["baselines"]:
        fit_against(options, Outcome.of_training(first), resumed)
