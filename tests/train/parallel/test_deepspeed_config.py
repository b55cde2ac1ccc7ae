"""An Accelerate file that asks for DeepSpeed: honoured, or refused in one line that says what to do."""

import json

import pytest
import yaml

from probe.errors import UserError
from probe.recipe import MethodConfig
from probe.recipe.train_settings import TrainConfig
from probe.train import build
from probe.train.parallel import accelerator, deepspeed_config, fsdp_config, launch
from probe.train.parallel.deepspeed import Zero
from probe.train.parallel.launch import World
from tests.support.training_world import feature_training


@pytest.fixture
def config(tmp_path):
    """Write an Accelerate configuration file, and the DeepSpeed file that it names; give its path."""

    def write(file=None, **words):
        if file is not None:
            (tmp_path / "ds.json").write_text(file if isinstance(file, str) else json.dumps(file))
            words["deepspeed_config_file"] = "ds.json"
        path = tmp_path / "accelerate.yaml"
        path.write_text(yaml.safe_dump({"distributed_type": "DEEPSPEED", "deepspeed_config": words}))
        return path

    return write


def told(path):
    return json.loads(fsdp_config.environment(path)[deepspeed_config.ASKED])


def test_the_questionnaires_answers_become_a_stage(config):
    answers = {
        "zero_stage": 1,
        "gradient_accumulation_steps": 1,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": False,
        "deepspeed_multinode_launcher": "standard",
    }
    assert told(config(**answers)) == {"stage": 1}
    assert told(config()) == {"stage": 2}
    assert told(config(zero_stage="2")) == {"stage": 2}


def test_a_file_of_deepspeeds_own_says_how_to_communicate(config):
    file = {
        "train_batch_size": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": False},
        "gradient_clipping": "auto",
        "steps_per_print": 100,
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": False,
            "reduce_bucket_size": 1e3,
            "allgather_bucket_size": "auto",
            "offload_optimizer": {"device": "none"},
        },
    }
    assert told(config(file)) == {"stage": 2, "overlap_comm": False, "reduce_bucket_size": 1000}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"zero_stage": 3}, "use distributed_type: FSDP"),
        ({"zero_stage": 0}, "ZeRO stage 0 splits nothing; use stage 1 or 2, or no DeepSpeed"),
        ({"offload_optimizer_device": "cpu"}, "offload_optimizer is not supported; leave it out"),
        ({"offload_param_device": "nvme"}, "offload_param is not supported; leave it out"),
        ({"gradient_clipping": 1.0}, "gradient_clipping is the recipe's to say; .* set train.clip"),
        ({"gradient_accumulation_steps": 4}, "leave it out and set train.micro_batch"),
        ({"file": {"bf16": {"enabled": True}}}, "ds.json: bf16 is the recipe's to say; .* train.precision"),
        ({"file": {"optimizer": {"type": "Adam"}}}, "leave it out and set train.optimizer"),
        ({"file": {"zero_optimization": {"stage": 2, "overlap_com": True}}}, 'did you mean "overlap_comm"'),
        ({"file": {"zero_optimization": 2}}, "zero_optimization is not a table of settings"),
        ({"file": {"zero_optimization": {"stage": 2, "round_robin_gradients": True}}}, "is not supported"),
        ({"file": {"zero_optimization": {"stage": 2, "overlap_comm": "yes"}}}, "'yes'; give true or false"),
        ({"file": {"zero_optimization": {"stage": 2, "reduce_bucket_size": "big"}}}, "give a number"),
        ({"file": {"zero_optimization": {"stage": 2, "reduce_bucket_size": -5}}}, "is -5; give a number"),
        ({"file": {"zero_optimization": {"stage": 2}}, "zero_stage": 1}, "stage 1, .* for stage 2"),
        ({"file": {"steps_per_print": 5}}, "ZeRO stage 0 splits nothing"),
        ({"deepspeed_config_file": 5}, "5 is not a DeepSpeed configuration"),
        ({"file": {"tensor_parallel": {"autotp_size": 4}}}, "tensor_parallel is not supported"),
        ({"file": "{"}, "ds.json is not a DeepSpeed configuration"),
        ({"file": "[]"}, "ds.json is not a DeepSpeed configuration: it holds no table"),
        ({"deepspeed_config_file": "absent.json"}, "absent.json is not a DeepSpeed configuration"),
    ],
)
def test_what_is_not_supported_is_one_line(config, words, why):
    path = config(**words)
    with pytest.raises(UserError, match=why) as refused:
        launch.launch(World(2, config=path), [])
    assert "\n" not in str(refused.value)


def test_a_section_that_is_none_is_one_line(tmp_path):
    (tmp_path / "odd.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config: x\n")
    with pytest.raises(UserError, match="deepspeed_config is not a table of settings"):
        launch.launch(World(2, config=tmp_path / "odd.yaml"), [])


def test_one_process_has_nobody_to_split_with(config):
    with pytest.raises(UserError, match=r"asks for DEEPSPEED, which splits .* use --gpus 2 or more"):
        launch.launch(World(1, config=config()), [])


def test_without_the_library_it_is_named(config, monkeypatch):
    monkeypatch.setattr(deepspeed_config, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed; pip install deepspeed"):
        launch.launch(World(2, config=config()), [])


def test_on_gpus_accelerate_starts_plain_processes_that_split_by_themselves(config, monkeypatch, on_gpus):
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    for name in (launch.ASKED, deepspeed_config.ASKED):
        monkeypatch.setenv(name, "")
    assert launch.launch(World(2, config=config(zero_stage=1)), ["run"]) == 0
    assert deepspeed_config.asked() == {"stage": 1}
    parsed, *_ = _validate_launch_command(launch_command_parser().parse_args(on_gpus[0][3:]))
    assert (parsed.multi_gpu, parsed.use_deepspeed, parsed.num_processes) == (True, False, 2)


def test_processes_that_accelerate_told_to_use_deepspeed_say_how_to_start_them(monkeypatch):
    import accelerate

    class Found:
        distributed_type = accelerate.DistributedType.DEEPSPEED

    monkeypatch.setattr(accelerate, "Accelerator", lambda **_: Found())
    with pytest.raises(UserError, match="start DeepSpeed with --accelerate-config FILE"):
        accelerator.accelerator(TrainConfig())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"precision": "fp16"}, "set train.precision=bf16"),
        ({"channels_last": True}, "set train.channels_last=false"),
        ({"micro_batch": "auto"}, "set train.micro_batch to a number"),
    ],
)
def test_recipes_that_cannot_be_split_are_refused(monkeypatch, settings, why):
    monkeypatch.setenv(deepspeed_config.ASKED, '{"stage": 2}')
    with pytest.raises(UserError, match=why):
        accelerator.accelerator(TrainConfig(**settings))


def test_a_method_that_works_on_gradients_is_refused_before_it_starts(monkeypatch):
    build.check(MethodConfig(name="sam"), TrainConfig())
    monkeypatch.setenv(deepspeed_config.ASKED, '{"stage": 2}')
    with pytest.raises(
        UserError, match=r"sam: it works on whole gradients.*train it with distributed_type: FSDP"
    ):
        build.check(MethodConfig(name="sam"), TrainConfig())


def test_a_method_that_does_not_say_so_is_refused_when_it_asks_for_them(monkeypatch):
    training = feature_training("sam")
    monkeypatch.setattr(type(training.engine), "parameters", Zero.parameters)
    with pytest.raises(UserError, match="it works on whole gradients"):
        training.run()
